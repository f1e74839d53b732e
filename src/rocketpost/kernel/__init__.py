"""Hot loops on primitives: ordinary Python that Cython may compile."""
