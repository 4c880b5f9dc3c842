"""Pure planning: the specification of a run, and what each round asks and admits."""
