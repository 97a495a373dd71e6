"""A function that both sides of a comparison analyse."""


def centre(atoms):
    if atoms.universe.trajectory.frame == 90:
        raise ArithmeticError("frame 90 is odd")
    return atoms.center_of_geometry()
