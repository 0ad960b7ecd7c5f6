package format

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
)

const (
	MaxLine = 8 << 10 // of a line without its newline

	// A line begins with StampVersion, its number, StampTime, its time in TimeLayout, and StampEnd.
	StampVersion = `{"v":1,"seq":`
	StampTime    = `,"time":"`
	TimeLayout   = "2006-01-02T15:04:05.000000Z"
	StampEnd     = `",`
)

// Printable reports whether text is printable ASCII, eight bytes at a time: the
// sum and the difference have a high bit set where a byte is DEL or below
// space, and from the first such byte on perhaps elsewhere.
func Printable(text []byte) bool {
	const (
		ones  = 0x0101010101010101
		highs = ones << 7
	)
	for ; len(text) >= 8; text = text[8:] {
		w := binary.LittleEndian.Uint64(text)
		if (w|(w-ones*' ')|(w+ones))&highs != 0 {
			return false
		}
	}
	for _, b := range text {
		if b < ' ' || b > '~' {
			return false
		}
	}
	return true
}

// CheckLine checks the form of a line, as far as Append vouches for it, and
// returns its number.
func CheckLine(line []byte) (seq int64, err error) {
	if len(line) > MaxLine {
		return 0, errTooLong
	}
	digits, rest, ok := cutStamp(line)
	if !ok {
		return 0, errors.New("the line does not begin with version, number and time")
	}
	if seq, ok = parseSeq(digits); !ok {
		return 0, errors.New("the line is not numbered")
	}
	if len(rest) < len(`"}`) || rest[0] != '"' || rest[len(rest)-1] != '}' || !Printable(rest) {
		return 0, errors.New("the line is not a JSON object in printable ASCII")
	}
	return seq, nil
}

// TimeOf returns the time of a well-formed line, in TimeLayout.
func TimeOf(line []byte) string {
	_, rest, _ := bytes.Cut(line, []byte(StampTime))
	return string(rest[:len(TimeLayout)])
}

// parseSeq parses a number in its only form: without leading zeros or sign, and below 2^63.
func parseSeq(digits []byte) (seq int64, ok bool) {
	if len(digits) == 0 || digits[0] == '0' && len(digits) > 1 {
		return 0, false
	}
	for _, b := range digits {
		d := int64(b) - '0'
		if d < 0 || d > 9 || seq > (math.MaxInt64-d)/10 {
			return 0, false
		}
		seq = seq*10 + d
	}
	return seq, true
}

// cutStamp cuts a line into the digits of its number and what stands behind
// the time.
func cutStamp(line []byte) (digits, rest []byte, ok bool) {
	rest, ok = bytes.CutPrefix(line, []byte(StampVersion))
	if !ok {
		return nil, nil, false
	}
	digits, rest, ok = bytes.Cut(rest, []byte(StampTime))
	if !ok || len(rest) < len(TimeLayout) || !isTime(rest[:len(TimeLayout)]) {
		return nil, nil, false
	}
	rest, ok = bytes.CutPrefix(rest[len(TimeLayout):], []byte(StampEnd))
	return digits, rest, ok
}

// isTime reports whether text, which has its length, has the form of
// TimeLayout.
func isTime(text []byte) bool {
	for i, b := range text {
		form := TimeLayout[i]
		if form >= '0' && form <= '9' {
			if b < '0' || b > '9' {
				return false
			}
		} else if b != form {
			return false
		}
	}
	return true
}

var errTooLong = errors.New("the line is too long")
