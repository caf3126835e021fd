"""The method itself: distances, codebooks, neural gas and the blend. Imports torch and numpy only."""
