# C types for the compiled build of send_text.py.
cimport cython

from rocketpost.kernel.send_types cimport Long, Send, Source, Target

cdef int _QUOTE, _BACKSLASH


@cython.locals(other=cython.uchar, i=Py_ssize_t, byte=cython.int, second=cython.int,
               more=Py_ssize_t)
cdef bint is_text(Source p, Py_ssize_t at, Py_ssize_t end, int lowest) noexcept

@cython.locals(to=Py_ssize_t, byte=cython.int, mark=cython.int, unit=cython.int)
cdef Py_ssize_t unescape(Source p, Py_ssize_t at, Py_ssize_t end, Target scratch, Py_ssize_t room,
                         Send* send) noexcept

@cython.locals(unit=cython.int, digit=cython.int, i=Py_ssize_t)
cdef int _read_hex(Source p, Py_ssize_t at) noexcept
