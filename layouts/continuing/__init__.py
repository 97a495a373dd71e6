"""Outputs that go on: what each layout takes over of one into a new one with more frames."""
