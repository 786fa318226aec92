"""What users write: options, settings and arguments, parsed and checked."""
