# C types for the compiled build of property_columns.py.
cimport cython
from libc.string cimport memchr, memcmp, memmove

cdef unsigned char _NAME_END
cdef unsigned char _VALUE_END


@cython.locals(found=Py_ssize_t, known=Py_ssize_t, known_at=Py_ssize_t, known_end=Py_ssize_t,
               i=Py_ssize_t, first=Py_ssize_t, at=Py_ssize_t, end=Py_ssize_t, is_alike=cython.bint,
               like=Py_ssize_t, name_end=Py_ssize_t, value_end=Py_ssize_t, row=Py_ssize_t,
               size=Py_ssize_t)
cpdef Py_ssize_t split_properties(const unsigned char[::1] data, const long long[::1] begins,
                                  const long long[::1] ends, int[::1] row_ends,
                                  int[::1] name_ends, unsigned char[::1] names,
                                  int[::1] value_ends, unsigned char[::1] values,
                                  unsigned char[::1] alike) noexcept

@cython.locals(size=Py_ssize_t, found=Py_ssize_t, place=Py_ssize_t, i=Py_ssize_t, first=Py_ssize_t,
               last=Py_ssize_t, row=Py_ssize_t)
cpdef Py_ssize_t find_values(const unsigned char[::1] name, const int[::1] row_ends,
                             const int[::1] name_ends, const unsigned char[::1] names,
                             const int[::1] value_ends, const unsigned char[::1] alike,
                             long long[::1] begins, long long[::1] ends) noexcept

cdef void _append(const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t end, int[::1] ends,
                  unsigned char[::1] joined, Py_ssize_t count) noexcept

@cython.locals(shift=Py_ssize_t, row=Py_ssize_t)
cdef Py_ssize_t _append_copies(Py_ssize_t like, Py_ssize_t last, Py_ssize_t count, int[::1] ends,
                       unsigned char[::1] joined) noexcept

@cython.locals(behind=Py_ssize_t, shift=Py_ssize_t, other=Py_ssize_t)
cdef void _replace(const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t end, int[::1] ends,
                   unsigned char[::1] joined, Py_ssize_t row, Py_ssize_t count) noexcept

@cython.locals(row=Py_ssize_t, begin=Py_ssize_t)
cdef Py_ssize_t _pair_of(const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t size,
                         const int[::1] name_ends, const unsigned char[::1] names,
                         Py_ssize_t first, Py_ssize_t found) noexcept

@cython.locals(found=cython.p_uchar, place=Py_ssize_t)
cdef Py_ssize_t _find(const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t end,
                      unsigned char mark) noexcept

@cython.locals(is_same=cython.bint)
cdef bint _is_same(const unsigned char[::1] data, Py_ssize_t at, const unsigned char[::1] other,
                   Py_ssize_t begin, Py_ssize_t size) noexcept

cdef void _copy(const unsigned char[::1] data, Py_ssize_t begin, unsigned char[::1] joined,
                Py_ssize_t at, Py_ssize_t size) noexcept
