"""The app in a browser: its pages show stored runs, start runs and judge returns."""
