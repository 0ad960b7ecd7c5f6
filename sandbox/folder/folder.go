// Package folder serves a folder of the host to a sandbox by FUSE. The sandbox sees the whole folder as it is at each moment, and changes
// only what an [Area] names. The name decides at each call, so no change on the host opens more, as a file that takes
// the place of another one would do under a read-only mount.
//
//	err := folder.Serve("/home/a/repo/.git", &folder.Area{Names: func(name string) *folder.Area { … }}, device)
//
// It makes no symbolic link, hard link, device, FIFO or socket, and follows no symbolic link: the sandbox resolves them, in its own
// file system.
package folder

import (
	"os"
	"syscall"
)

// A Right says which changes the sandbox may make to a file or folder. The zero value denies.
type Right uint8

const (
	// Closed allows the sandbox to read.
	Closed Right = iota
	// Free allows the sandbox to change, remove and replace, and to do so with everything below.
	Free
	// Own allows the sandbox to make a file where there is none. The sandbox may change and remove its own file, and only read one of
	// the host: the host may rename its file to a closed name. Own is for files by which programs lock others.
	Own
)

// An Area gives the rights to a file or folder and to what lies below.
type Area struct {
	Right Right
	// Names returns the area of a name in the folder; nil: that of the folder itself. It returns the same pointer for the same name.
	Names func(name string) *Area
	// Only is the one file or folder that the area is for; nil: whatever has the name. Another one is closed.
	Only os.FileInfo
}

// nothing is the area of what can only be read.
var nothing = &Area{}

// of returns the area of what has a name in the folder, which is file.
func (a *Area) of(name string, file fileKey) *Area {
	below := a.in(name)
	if below.Only == nil {
		return below
	}
	if is, ok := below.Only.Sys().(*syscall.Stat_t); ok && keyOf(is) == file {
		return below
	}
	return nothing
}

func (a *Area) in(name string) *Area {
	if a.Names == nil {
		return a
	}
	return a.Names(name)
}
