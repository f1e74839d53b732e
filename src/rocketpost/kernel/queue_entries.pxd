# C types for the compiled build of queue_entries.py.
cimport cython

cdef Py_ssize_t _ROW
cdef Py_ssize_t _SIZE
cdef Py_ssize_t _TAGS
cdef Py_ssize_t _SLOT
cdef Py_ssize_t _OFFSET
cdef Py_ssize_t _GROUP
cdef Py_ssize_t _FIRST_OFFSET
cdef Py_ssize_t _END
cdef Py_ssize_t _BYTES
cdef Py_ssize_t _LAST_POSITION
cdef Py_ssize_t _ENTRY_BYTES
cdef long long _SIZE_MAX


@cython.locals(row_count=Py_ssize_t, slot_count=Py_ssize_t, queue_count=Py_ssize_t,
               is_sound=cython.bint, row=Py_ssize_t, at=Py_ssize_t, slot=cython.longlong,
               size=cython.longlong, queue=Py_ssize_t, group=Py_ssize_t)
cpdef Py_ssize_t group_rows(const long long[::1] rows, Py_ssize_t first, Py_ssize_t count,
                            long long[::1] marks, long long[::1] groups,
                            unsigned char[::1] entries) noexcept

@cython.locals(begin=cython.longlong, queue=Py_ssize_t, group=Py_ssize_t, number=cython.longlong,
               row=Py_ssize_t, at=Py_ssize_t, place=Py_ssize_t, entry=cython.p_uchar)
cdef void _write(const long long[::1] rows, Py_ssize_t first, Py_ssize_t count,
                 long long[::1] marks, long long[::1] groups, unsigned char[::1] entries,
                 Py_ssize_t queue_count) noexcept

cdef void _put_int(unsigned char* entry, Py_ssize_t at, long long value) noexcept
