"""The SlateDB adapter: an ordered store on an object store or in a directory."""
