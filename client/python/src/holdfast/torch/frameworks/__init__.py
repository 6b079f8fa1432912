"""The classes by which other frameworks save: each is imported with its framework when it is
named."""
