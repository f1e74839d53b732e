# C types for the compiled build of record_columns.py.
cimport cython
from libc.string cimport memcmp, memmove

cdef long long _MAGIC_V1
cdef long long _MAGIC_V2
cdef Py_ssize_t _SMALLEST
cdef Py_ssize_t _ENTRY_BYTES
cdef int _BORN_V6
cdef int _STORE_V6
cdef const unsigned char* _DIGITS


@cython.locals(count=Py_ssize_t, at=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t,
               magic=cython.longlong)
cpdef tuple walk(const unsigned char[::1] data, long long[::1] starts, long long bytes_max)

@cython.locals(count=Py_ssize_t, i=Py_ssize_t, at=Py_ssize_t, size=Py_ssize_t, end=Py_ssize_t,
               is_v2=cython.bint, sys_flag=cython.longlong, store_at=Py_ssize_t,
               rest_at=Py_ssize_t, body_at=Py_ssize_t, body_end=Py_ssize_t, topic_at=Py_ssize_t,
               topic_end=Py_ssize_t, text_at=Py_ssize_t)
cpdef Py_ssize_t lay_out(const unsigned char[::1] data, const long long[::1] starts,
                         long long ms_min, long long ms_max, long long[::1] places,
                         long long[::1] longs, int[::1] ints) noexcept

@cython.locals(count=Py_ssize_t, mask=Py_ssize_t, queues=Py_ssize_t, i=Py_ssize_t,
               begin=Py_ssize_t, size=Py_ssize_t, slot=Py_ssize_t, first=Py_ssize_t,
               queue=Py_ssize_t)
cpdef Py_ssize_t number_queues(const unsigned char[::1] data, const long long[::1] topics_at,
                               const long long[::1] topic_ends, const int[::1] queue_ids,
                               const long long[::1] offsets, int[::1] slots, int[::1] numbers,
                               long long[::1] found) noexcept

@cython.locals(queues=Py_ssize_t, room=Py_ssize_t, i=Py_ssize_t, queue=Py_ssize_t,
               offset=cython.longlong, position=cython.longlong, ordinal=cython.longlong,
               size=cython.longlong, hit=cython.bint)
cpdef void find_in_queues(const unsigned char[::1] entries, const int[::1] numbers,
                          const long long[::1] offsets, const long long[::1] positions,
                          const long long[::1] limits, unsigned char[::1] visible) noexcept

@cython.locals(i=Py_ssize_t, total=Py_ssize_t)
cpdef Py_ssize_t measure(const long long[::1] begins, const long long[::1] ends, int[::1] offsets) noexcept

@cython.locals(i=Py_ssize_t)
cpdef void copy_slices(const unsigned char[::1] data, const long long[::1] begins,
                       const int[::1] offsets, unsigned char[::1] joined) noexcept

@cython.locals(i=Py_ssize_t, every=cython.uchar)
cpdef bint is_ascii(const unsigned char[::1] text) noexcept

@cython.locals(host=cython.longlong, high=cython.longlong, i=Py_ssize_t, k=Py_ssize_t, at=Py_ssize_t,
               host_at=Py_ssize_t, place=Py_ssize_t, known=Py_ssize_t, byte=cython.uchar)
cpdef void write_ids(const unsigned char[::1] data, const long long[::1] hosts_at,
                     Py_ssize_t shift, const long long[::1] starts, unsigned char[::1] text) noexcept

@cython.locals(size=Py_ssize_t, i=Py_ssize_t, k=Py_ssize_t, at=Py_ssize_t, begin=Py_ssize_t,
               known=cython.longlong, host=cython.longlong, is_known=cython.bint,
               port=cython.longlong)
cpdef Py_ssize_t write_hosts(const unsigned char[::1] data, const long long[::1] hosts_at,
                             Py_ssize_t shift, int[::1] offsets, unsigned char[::1] text) noexcept

@cython.locals(power=cython.ulonglong)
cdef Py_ssize_t _write_number(unsigned long long number, unsigned char[::1] text, Py_ssize_t at) noexcept

@cython.locals(code=cython.longlong, k=Py_ssize_t)
cdef long long _hash(const unsigned char[::1] data, Py_ssize_t begin, Py_ssize_t size,
                     long long seed) noexcept

@cython.locals(is_same=cython.bint)
cdef bint _is_same(const unsigned char[::1] data, Py_ssize_t at, const unsigned char[::1] other,
                   Py_ssize_t begin, Py_ssize_t size) noexcept

cdef void _copy(const unsigned char[::1] data, Py_ssize_t begin, unsigned char[::1] joined,
                Py_ssize_t at, Py_ssize_t size) noexcept

@cython.locals(number=Py_ssize_t)
cdef Py_ssize_t _short(const unsigned char[::1] data, Py_ssize_t at) noexcept

@cython.locals(number=cython.longlong)
cdef long long _int(const unsigned char[::1] data, Py_ssize_t at) noexcept

cdef long long _long(const unsigned char[::1] data, Py_ssize_t at) noexcept

@cython.locals(four=cython.p_const_uchar, number=cython.uint)
cdef long long _unsigned(const unsigned char[::1] data, Py_ssize_t at) noexcept
