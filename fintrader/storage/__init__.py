"""A run's files in an object store: whole objects, a lease, and the working copy of a run on this
machine's disk."""
