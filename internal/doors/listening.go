package doors

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// harmless are sockets, and folders of them, behind which nobody connects, starts
// anything, or types: they sign, look users up, and take lines for a log.
var harmless = [...]string{
	"/run/systemd/userdb",
	"/run/systemd/journal",
	"/run/pcscd",
}

// harmlessNames are such sockets wherever they are.
var harmlessNames = [...]string{"S.gpg-agent", "S.gpg-agent.ssh", "S.gpg-agent.extra", "S.keyboxd", "S.scdaemon"}

// listening returns the paths of sockets in this network namespace that who runs this
// may connect to, or send to, but for the harmless ones and that of the agent.
//
// A path is what was given to bind(2): one that was relative, or that is in a mount
// namespace of its own, is not found.
func listening(agent string) []string {
	f, err := os.Open("/proc/self/net/unix")
	if err != nil {
		return nil // known ones are left
	}
	defer f.Close()
	var paths []string
	for _, path := range boundIn(f) {
		if path != agent && !isHarmless(path) && mayConnect(path) {
			paths = append(paths, path)
		}
	}
	return paths
}

// boundIn reads a table of the kernel: the paths of sockets that take connections,
// or datagrams.
func boundIn(table io.Reader) (paths []string) {
	const stream, listens, path = 4, "00010000", 7
	seen := map[string]bool{}
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.SplitN(strings.Join(strings.Fields(lines.Text()), " "), " ", path+1)
		if len(fields) <= path || !filepath.IsAbs(fields[path]) {
			continue
		}
		at := lines.Text()[strings.Index(lines.Text(), " /")+1:] // spaces as they are
		if datagrams := fields[stream] == "0002"; (datagrams || fields[3] == listens) && !seen[at] {
			seen[at] = true
			paths = append(paths, at)
		}
	}
	return paths
}

func isHarmless(path string) bool {
	for _, folder := range harmless {
		if path == folder || strings.HasPrefix(path, folder+"/") {
			return true
		}
	}
	for _, name := range harmlessNames {
		if filepath.Base(path) == name {
			return true
		}
	}
	return false
}

// mayConnect reports whether a socket is at path, and who runs this may write to it,
// which is what connect(2) asks for.
func mayConnect(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&os.ModeSocket != 0 && mayWrite(path)
}

func mayWrite(path string) bool {
	const write = 2 // W_OK
	return syscall.Access(path, write) == nil
}
