# C types for the compiled build of send_headers.py.
cimport cython
from libc.string cimport memcmp

from rocketpost.kernel.send_types cimport Long, Send, Source, Target
from rocketpost.kernel.send_text cimport is_text, read_number, unescape

cdef int _SEND, _SEND_V2, _SEND_BATCH, _ONEWAY
cdef int _SPACE, _QUOTE, _COMMA, _COLON, _BACKSLASH, _OPEN, _CLOSE
cdef Py_ssize_t _BINARY_BYTES
cdef Long _INT_MAX, _LONG_MAX
cdef int _GROUP, _TOPIC, _DEFAULT_TOPIC, _DEFAULT_QUEUES, _QUEUE_ID, _SYS_FLAG, _BORN_MS, _FLAG
cdef int _PROPERTIES, _RECONSUME_TIMES, _UNIT_MODE, _MAX_RECONSUME_TIMES, _BATCH, _BROKER_NAME
cdef int _ACCESS_KEY, _SIGNATURE
cdef int _HAS_CODE, _HAS_FLAG, _HAS_OPAQUE, _HAS_VERSION, _HAS_LANGUAGE, _HAS_REMARK
cdef int _HAS_ENCODING, _HAS_FIELDS


@cython.locals(name=Py_ssize_t, member=cython.int)
cdef bint read_json(Source p, Py_ssize_t at, Py_ssize_t end, Target scratch, Py_ssize_t room,
                    Send* send) noexcept

@cython.locals(name_bytes=Py_ssize_t, field=cython.int, size=Long)
cdef bint read_binary(Source p, Py_ssize_t at, Py_ssize_t end, Send* send) noexcept

cdef void _clear(Send* send) noexcept

@cython.locals(code=cython.int)
cdef bint may_be_send(Source p, Py_ssize_t at) noexcept

cdef bint _is_send(Send* send) noexcept

cdef int _member_of(Source p, Py_ssize_t at, Py_ssize_t size) noexcept

@cython.locals(begin=Py_ssize_t)
cdef Py_ssize_t _read_member(Source p, Py_ssize_t at, Py_ssize_t end, int member,
                             Send* send) noexcept

@cython.locals(name=Py_ssize_t, field=cython.int, value=Py_ssize_t)
cdef Py_ssize_t _read_fields(Source p, Py_ssize_t at, Py_ssize_t end, Target scratch, Py_ssize_t room,
                             Send* send) noexcept

@cython.locals(letter=cython.int)
cdef int _field_of(Source p, Py_ssize_t at, Py_ssize_t size, Send* send) noexcept

cdef bint _is_text_field(int field) noexcept

@cython.locals(is_true=cython.bint)
cdef bint _set_field(Source p, Py_ssize_t at, Py_ssize_t end, int field, Send* send) noexcept

cdef Py_ssize_t _find_value(Source p, Py_ssize_t at, Py_ssize_t end) noexcept

cdef Py_ssize_t _skip_text(Source p, Py_ssize_t at, Py_ssize_t end, bint may_be_null) noexcept

cdef Py_ssize_t _skip_spaces(Source p, Py_ssize_t at, Py_ssize_t end) noexcept

cdef Py_ssize_t _find_quote(Source p, Py_ssize_t at, Py_ssize_t end) noexcept

cdef bint _is_same(Source p, Py_ssize_t at, const char* other, Py_ssize_t size) noexcept

@cython.locals(number=Long)
cdef Long _int(Source p, Py_ssize_t at) noexcept
