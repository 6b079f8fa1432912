"""Classes through which other frameworks save. Each is imported with its framework at first use."""
