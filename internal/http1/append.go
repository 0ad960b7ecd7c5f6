package http1

import "strconv"

// AppendRequest appends the head of an HTTP/1.1 request to dst. It writes what
// it is given: method, target and fields come from this package's parsers, or
// are known to be valid (see [Field.Valid]).
func AppendRequest(dst []byte, method, target string, fields Fields) []byte {
	dst = append(dst, method...)
	dst = append(dst, ' ')
	dst = append(dst, target...)
	dst = append(dst, " HTTP/1.1\r\n"...)
	return AppendFields(dst, fields)
}

// AppendResponse appends the head of an HTTP/1.1 response to dst, under the
// same conditions as [AppendRequest]. status has three digits.
func AppendResponse(dst []byte, status int, reason string, fields Fields) []byte {
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(status), 10)
	dst = append(dst, ' ')
	dst = append(dst, reason...)
	dst = append(dst, "\r\n"...)
	return AppendFields(dst, fields)
}

// AppendFields appends field lines and the empty line that ends them.
func AppendFields(dst []byte, fields Fields) []byte {
	for i := range fields {
		dst = append(dst, fields[i].Name...)
		dst = append(dst, ": "...)
		dst = append(dst, fields[i].Value...)
		dst = append(dst, "\r\n"...)
	}
	return append(dst, "\r\n"...)
}
