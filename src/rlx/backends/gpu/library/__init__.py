"""Named algorithms as SIMT programs: gathers, compaction, sorts, transforms."""
