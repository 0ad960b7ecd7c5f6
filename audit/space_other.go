//go:build !linux

package audit

import "errors"

// Space says that it is not known here.
func Space(string) (free, size int64, err error) { return 0, 0, errors.ErrUnsupported }
