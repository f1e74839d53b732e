# C types for the compiled build of send_answers.py.
cimport cython

cdef int _QUOTE
cdef int _BACKSLASH
cdef int _COMMA
cdef int _COLON
cdef int _ZERO
cdef int _NINE
cdef int _OPEN
cdef int _CLOSE
cdef int _SPACE
cdef int _TILDE
cdef Py_ssize_t _PREFIX_BYTES
cdef long long _HEADER_BYTES_MAX
cdef Py_ssize_t _DIGITS_MAX
cdef long long _NUMBER_MAX
cdef long long _NONE
cdef str _REGION


@cython.locals(text=cython.p_const_uchar, answers=list, at=Py_ssize_t, end=Py_ssize_t,
               size=cython.longlong, i=Py_ssize_t, stop=Py_ssize_t, code=cython.longlong,
               flag=cython.longlong, opaque=cython.longlong, queue_id=cython.longlong,
               queue_offset=cython.longlong, id_at=Py_ssize_t, id_end=Py_ssize_t,
               transaction_at=Py_ssize_t, transaction_end=Py_ssize_t, region_at=Py_ssize_t,
               region_end=Py_ssize_t, is_traced=cython.bint, depth=cython.int,
               is_plain=cython.bint, key_at=Py_ssize_t, key_end=Py_ssize_t, key_bytes=Py_ssize_t,
               is_text=cython.bint, value_at=Py_ssize_t, value_end=Py_ssize_t,
               number=cython.longlong)
cpdef tuple read_answers(bytes data)

@cython.locals(char=cython.int)
cdef Py_ssize_t _find_quote(const unsigned char* text, Py_ssize_t at, Py_ssize_t stop) noexcept

@cython.locals(first=Py_ssize_t)
cdef Py_ssize_t _skip_number(const unsigned char* text, Py_ssize_t at, Py_ssize_t stop) noexcept

@cython.locals(number=cython.longlong, digit=cython.int)
cdef long long _read_number(const unsigned char* text, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(k=Py_ssize_t)
cdef bint _is_word(const unsigned char* text, Py_ssize_t at, Py_ssize_t size,
                   const unsigned char* word, Py_ssize_t word_bytes) noexcept

@cython.locals(number=cython.uint)
cdef long long _unsigned(const unsigned char* text, Py_ssize_t at) noexcept
