"""The report: the history of messages as tables and as one page with charts."""
