"""What a run left behind, read without torch: for the app, the report, notebooks and the command
line."""
