"""Where the progress of an experiment goes, one file each."""
