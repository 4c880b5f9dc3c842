"""An app in the form of those that Flower begins with."""
