# C types for the compiled build of client_sends.py.
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy

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
cdef Py_ssize_t _FLAG_NAME_BYTES, _TEXT_NAME_BYTES
cdef const unsigned char* _FLAG_NAME
cdef const unsigned char* _TEXT_NAME
cdef const unsigned char* _DIGITS


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

@cython.locals(encoded=bytes, text=cython.p_const_uchar, text_bytes=Py_ssize_t,
               start_bytes=Py_ssize_t, more_bytes=Py_ssize_t, tail_bytes=Py_ssize_t,
               end_bytes=Py_ssize_t, header_bytes=Py_ssize_t, head=bytes, out=cython.p_uchar,
               at=Py_ssize_t)
cpdef bytes encode_head(bytes start, long long born_ms, long long flag, str properties, bytes more,
                        bytes tail, long long opaque, bytes end, long long body_bytes)

@cython.locals(more=Py_ssize_t, i=Py_ssize_t, char=cython.int)
cdef Py_ssize_t _count_escapes(const unsigned char* text, Py_ssize_t size) noexcept

cdef int _letter_of(int char) noexcept

@cython.locals(i=Py_ssize_t, char=cython.int, letter=cython.int)
cdef Py_ssize_t _put_text(unsigned char* out, Py_ssize_t at, const unsigned char* text,
                          Py_ssize_t size) noexcept

cdef Py_ssize_t _put(unsigned char* out, Py_ssize_t at, const unsigned char* data,
                     Py_ssize_t size) noexcept

cdef Py_ssize_t _count_digits(long long value) noexcept

@cython.locals(end=Py_ssize_t, i=Py_ssize_t)
cdef Py_ssize_t _put_number(unsigned char* out, Py_ssize_t at, long long value) noexcept

cdef void _put4(unsigned char* out, Py_ssize_t at, long long value) noexcept
