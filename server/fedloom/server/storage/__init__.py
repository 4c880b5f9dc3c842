"""Files of the server: the spool of uploads, the model store, and their removal."""
