//go:build !linux

package compose

import (
	"fmt"
	"os"
)

// stateOf tells a file or folder from what it was before a change of its contents, by its time.
func stateOf(info os.FileInfo, changes bool) string {
	if !changes {
		return "a folder"
	}
	return fmt.Sprint(info.Size(), info.ModTime().UnixNano())
}
