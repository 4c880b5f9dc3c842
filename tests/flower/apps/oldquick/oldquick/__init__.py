"""An app with the structure of Flower's quickstarts."""
