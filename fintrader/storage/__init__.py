"""Object stores: whole objects, the lease of a run, and its working copy on the local disk."""
