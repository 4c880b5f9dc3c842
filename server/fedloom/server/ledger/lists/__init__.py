"""Lists that people read: filtered, sorted by any column and cut into pages in SQL."""
