"""The app: it reads run folders and nothing else, and shows only what is stored there."""
