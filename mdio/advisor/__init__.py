"""The advisor: from measured timings to a model of a machine, and from the model to a plan."""
