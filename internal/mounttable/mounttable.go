// Package mounttable reads /proc/PID/mountinfo (proc_pid_mountinfo(5)).
package mounttable

import (
	"slices"
	"strconv"
	"strings"
)

// A Mount is a line: a file system, or a part of one.
type Mount struct {
	ID      string // that of one that is gone may be given again
	Device  string // major:minor
	Root    string // the part, as a path in the file system
	Point   string // where it is, as the process sees it
	Options []string
	Kind    string // of file system
	Super   []string
}

// ReadOnly reports whether nothing can be written by this mount.
func (m *Mount) ReadOnly() bool { return slices.Contains(m.Options, "ro") }

// Parse reads a table. It leaves out lines that are no mounts.
func Parse(table string) (all []Mount) {
	const id, device, root, point, options, rest = 0, 2, 3, 4, 5, 6
	for line := range strings.Lines(table) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", rest+1) // there is one space between them
		if len(fields) <= rest {
			continue
		}
		_, what, _ := strings.Cut(" "+fields[rest], " - ")
		kind, what, _ := strings.Cut(what, " ")
		_, how, _ := strings.Cut(what, " ") // behind the source
		all = append(all, Mount{fields[id], fields[device], unescape(fields[root]), unescape(fields[point]), strings.Split(fields[options], ","), kind, strings.Split(how, ",")})
	}
	return all
}

// unescape reads octal escapes.
func unescape(field string) string {
	if strings.IndexByte(field, '\\') < 0 {
		return field
	}
	var b strings.Builder
	for i := 0; i < len(field); i++ {
		if field[i] == '\\' && i+3 < len(field) {
			if n, err := strconv.ParseUint(field[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(field[i])
	}
	return b.String()
}
