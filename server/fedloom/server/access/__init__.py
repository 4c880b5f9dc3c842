"""Who may do what on a server, how they prove it, and the record of what they did."""
