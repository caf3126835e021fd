"""Encoders: networks that turn images into the numbers that policies and memories work on."""
