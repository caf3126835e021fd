"""The lite server: a small driving simulator that the unmodified `carla` 0.9.16 client takes for a CARLA server.

Geometry is OpenDRIVE's, traffic follows lanes, cars are bicycles with tyre limits, cameras see flat-shaded ground and
boxes. It is not CARLA: its maps are named `Lite/Maps/...`, by which every client can tell, and its results are
compared only with its own.
"""
