# C types for the compiled build of pulled_records.py.
cimport cython

cdef long long _MAGIC_V1
cdef long long _MAGIC_V2
cdef Py_ssize_t _SMALLEST
cdef Py_ssize_t _HEAD_BYTES
cdef long long _HOSTS_V6
cdef Py_ssize_t _V6_BYTES
cdef long long _CRC_MASK
cdef long long _HIGH


@cython.locals(text=cython.p_const_uchar, made=list, at=Py_ssize_t, end=Py_ssize_t,
               topic_bytes=bytes, topic=str, size=cython.longlong, magic=cython.longlong,
               sys_flag=cython.longlong, body_at=Py_ssize_t, record_end=Py_ssize_t,
               body_bytes=cython.longlong, body_end=Py_ssize_t, topic_at=Py_ssize_t,
               topic_length=Py_ssize_t, topic_end=Py_ssize_t, properties_at=Py_ssize_t,
               name=bytes, body=bytes, properties=bytes, crc=cython.longlong)
cdef tuple _cut_in_place(bytes data, object make)

@cython.locals(number=Py_ssize_t)
cdef Py_ssize_t _short(const unsigned char* text, Py_ssize_t at) noexcept

@cython.locals(number=cython.longlong)
cdef long long _int(const unsigned char* text, Py_ssize_t at) noexcept

@cython.locals(number=cython.uint)
cdef long long _unsigned(const unsigned char* text, Py_ssize_t at) noexcept
