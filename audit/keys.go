package audit

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/internal/durable"
)

// A Refusal is the error for a log that exists but must not be written. Fix says what the operator can do.
type Refusal struct{ Problem, Fix string }

func (r *Refusal) Error() string { return r.Problem }

const keyHeader = "egressd audit key v1"

// Keys are the keys of one log: of the epoch that signs now, and of the next
// one while it is made. In a folder they are a file ORIGIN-DIGITS.key; without
// one they are in memory only. They are not safe for concurrent use.
type keys struct {
	folder   string // or "", for keys that end with the process
	origin   string
	root     string // the public key of the first epoch
	epoch    int64
	previous string // the public key of the epoch before, or ""
	now      *signer
	pending  *keys // the next epoch, whose file is there already
}

func newOrigin() string {
	var b [format.OriginDigits / 2]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	return format.OriginPrefix + hex.EncodeToString(b[:])
}

func newSigner(origin string) *signer {
	seed := make([]byte, ed25519.SeedSize)
	defer clear(seed)
	rand.Read(seed) // never fails, see crypto/rand
	return &signer{origin, ed25519.NewKeyFromSeed(seed)}
}

// createKeys makes the first key of a log. In a folder it is durable then.
func createKeys(folder, origin string) (*keys, error) {
	s := newSigner(origin)
	k := &keys{folder: folder, origin: origin, root: s.public(), now: s}
	if folder == "" {
		return k, nil
	}
	if err := makeKeyFolder(folder); err != nil {
		return nil, err
	}
	return k, k.write(".key")
}

// makeKeyFolder makes a folder for keys that only its owner can look into, or
// checks one.
func makeKeyFolder(folder string) error {
	if err := makeDirectory(folder, true); err != nil {
		return fmt.Errorf("make the folder of the log's keys: %w", err)
	}
	info, err := os.Lstat(folder)
	if err != nil {
		return fmt.Errorf("the folder of the log's keys: %w", err)
	}
	return ownedAlone(folder, info, fs.ModeDir)
}

// ownedAlone checks that nobody else owns, reads or writes a file.
func ownedAlone(path string, info fs.FileInfo, kind fs.FileMode) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case info.Mode().Type() != kind:
		return &Refusal{path + " is not what it should be, but " + info.Mode().Type().String(), "remove " + path}
	case ok && int(stat.Uid) != os.Geteuid():
		return &Refusal{fmt.Sprintf("%s belongs to user %d", path, stat.Uid), fmt.Sprintf("chown %d %s, if nobody else has had it", os.Geteuid(), path)}
	case info.Mode().Perm()&0o077 != 0:
		return &Refusal{fmt.Sprintf("%s can be read by others (%#o): who has read it can sign for this log", path, info.Mode().Perm()),
			"chmod go= " + path + ", if nobody else has read it"}
	}
	return nil
}

// keyPath is where the keys of a log are.
func keyPath(folder, origin, extension string) string {
	return filepath.Join(folder, strings.TrimPrefix(origin, format.OriginPrefix)+extension)
}

func (k *keys) write(extension string) error {
	path := keyPath(k.folder, k.origin, extension)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, format.FileRW)
	if err != nil {
		return fmt.Errorf("write the log's key: %w", err)
	}
	text := k.text()
	defer clear(text)
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = durable.SyncFolder(k.folder)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write the log's key: %w", err), os.Remove(path))
	}
	return nil
}

func (k *keys) text() []byte {
	var b []byte
	b = fmt.Appendf(b, "%s\norigin %s\nroot %s\nepoch %d\nprevious %s\nprivate ", keyHeader, k.origin, k.root, k.epoch, k.previous)
	b = base64.StdEncoding.AppendEncode(b, k.now.key.Seed())
	return append(b, '\n')
}

// parseKeys reads a key file.
func parseKeys(text []byte) (*keys, error) {
	lines := strings.Split(string(text), "\n")
	bad := errors.New("it is not a key file of egressd")
	if len(lines) != 7 || lines[0] != keyHeader || lines[6] != "" {
		return nil, bad
	}
	var values [5]string
	for i, word := range []string{"origin", "root", "epoch", "previous", "private"} {
		var ok bool
		if values[i], ok = strings.CutPrefix(lines[i+1], word+" "); !ok {
			return nil, bad
		}
	}
	k := &keys{origin: values[0], root: values[1], previous: values[3]}
	epoch, err := strconv.ParseInt(values[2], 10, 64)
	seed, seedErr := format.Decode64(values[4])
	if err := errors.Join(err, seedErr, format.CheckKeyFor(k.root, k.origin)); err != nil || len(seed) != ed25519.SeedSize {
		return nil, bad
	}
	k.epoch = epoch
	k.now = &signer{k.origin, ed25519.NewKeyFromSeed(seed)}
	clear(seed)
	return k, nil
}

// readSecret reads a file of keys, of which 4096 bytes count, and which only its owner may
// be able to read. The caller clears it.
func readSecret(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := ownedAlone(path, info, 0); err != nil {
		return nil, err
	}
	text := make([]byte, 4096)
	n, err := f.ReadAt(text, 0)
	if err != nil && err != io.EOF {
		clear(text)
		return nil, err
	}
	return text[:n], nil
}

// readKeys reads one key file, which only its owner may be able to read.
func readKeys(path string) (*keys, error) {
	text, err := readSecret(path)
	if err != nil {
		return nil, err
	}
	defer clear(text)
	k, err := parseKeys(text)
	if err != nil {
		return nil, &Refusal{fmt.Sprintf("%s: %v", path, err), "restore the file from a copy, or egressd serve --accept-damage, which begins a new log"}
	}
	k.folder = filepath.Dir(path)
	return k, nil
}

// loadKeys loads the key that the log's checkpoints say is due, and ends a change
// of epochs that a crash has interrupted. Due is "" where no checkpoint names a
// key, and so the root key is.
func loadKeys(folder, origin, due string) (*keys, error) {
	path, pending := keyPath(folder, origin, ".key"), keyPath(folder, origin, ".next")
	next, err := readKeys(pending)
	var refusal *Refusal
	switch {
	case err == nil && due != "" && next.now.public() == due:
		return next, next.settle()
	case err == nil || errors.As(err, &refusal): // it was not handed over to: what it has signed is nothing
		if err := erase(pending); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read the log's key: %w", err)
	}
	k, err := readKeys(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &Refusal{"the key of this log is not there: " + path + "; the log was copied from elsewhere, or its key is gone",
			"restore the key, or egressd serve --accept-damage, which sets the log aside and begins a new one"}
	case err != nil:
		return nil, err
	case k.now.public() != due && (due != "" || k.now.public() != k.root):
		return nil, &Refusal{"the checkpoints of this log are older than its key " + path + ": the log was put back to an earlier state",
			"restore the newest state of the log, or egressd serve --accept-damage, which sets it aside and begins a new one"}
	}
	return k, nil
}

// propose makes the key of the next epoch, durable where keys are, and returns
// its public half. It has to be adopted once a checkpoint that names it is durable.
// Called again before, it returns the same.
func (k *keys) propose() (string, error) {
	if k.pending != nil {
		return k.pending.now.public(), nil
	}
	next := &keys{folder: k.folder, origin: k.origin, root: k.root, epoch: k.epoch + 1, previous: k.now.public(), now: newSigner(k.origin)}
	if k.folder != "" {
		if err := next.write(".next"); err != nil {
			return "", err
		}
	}
	k.pending = next
	return next.now.public(), nil
}

// adopt makes the proposed key the one that signs, and destroys the one before.
func (k *keys) adopt() error {
	next := k.pending
	if k.folder != "" {
		if err := next.settle(); err != nil {
			return err
		}
	}
	k.now.wipe()
	*k = *next
	return nil
}

// settle overwrites the key file of the epoch that has ended, and renames the pending key file over it. The rename is
// not synced: after a crash loadKeys repeats it, and the next key that is written syncs the folder. A failed settle
// can be called again.
func (k *keys) settle() error {
	path, pending := keyPath(k.folder, k.origin, ".key"), keyPath(k.folder, k.origin, ".next")
	_, err := os.Lstat(pending)
	switch {
	case err == nil:
		if err := overwrite(path); err != nil {
			return fmt.Errorf("destroy the log's last key: %w", err)
		}
		if err := os.Rename(pending, path); err != nil {
			return fmt.Errorf("replace the log's key: %w", err)
		}
	case !errors.Is(err, fs.ErrNotExist): // where it is not there, the rename was done
		return fmt.Errorf("replace the log's key: %w", err)
	}
	return nil
}

// overwrite fills a file with zeros. File systems that copy on write, and disks
// that spread their writes, may keep the old content somewhere.
func overwrite(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		_, err = f.WriteAt(make([]byte, info.Size()), 0)
	}
	return errors.Join(err, syncData(f), f.Close()) // its size is what it was
}

// erase overwrites and removes a key file, where there is one.
func erase(path string) error {
	if err := overwrite(path); err != nil {
		return fmt.Errorf("destroy a key: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("destroy a key: %w", err)
	}
	return nil
}

// RootKey returns the public key of the first epoch of the log in dir, from the
// folder of its keys: what vouches for the log where it is known from elsewhere.
// An error wraps [fs.ErrNotExist] where there is no log, or no key of it.
func RootKey(dir, folder string) (string, error) {
	origin, err := format.OriginOf(dir)
	if err != nil {
		return "", err
	}
	folder = keyFolder(dir, folder)
	k, err := readKeys(keyPath(folder, origin, ".key"))
	var refusal *Refusal
	for range 3 {
		if !errors.As(err, &refusal) {
			break
		}
		// At the end of an epoch the key file is overwritten before the next one replaces it.
		// The next one may be in place by now.
		next, nextErr := readKeys(keyPath(folder, origin, ".next"))
		if nextErr != nil {
			next, nextErr = readKeys(keyPath(folder, origin, ".key"))
		}
		if nextErr == nil {
			k, err = next, nil
		}
	}
	if err != nil {
		return "", err
	}
	k.now.wipe()
	return k.root, nil
}

// keyFolder is where the keys of the log in dir are: in folder, else beside dir.
func keyFolder(dir, folder string) string {
	if folder != "" {
		return folder
	}
	return filepath.Join(filepath.Dir(filepath.Clean(dir)), "log-keys")
}
