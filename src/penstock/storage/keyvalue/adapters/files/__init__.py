"""The files adapter: a journal, one file per message, and directories that show every queue."""
