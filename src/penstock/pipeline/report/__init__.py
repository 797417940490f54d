"""The report: what happened to messages, as tables and as one page with charts."""
