"""Judge a ranking: precision, within-group AUC, fluency control, intervals."""
