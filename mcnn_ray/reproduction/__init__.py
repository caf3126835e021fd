"""The paper's tables and figures, run anew: what they are made of, with which budget, and how that is run."""
