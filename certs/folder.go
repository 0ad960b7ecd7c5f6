package certs

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/egressd/egressd/internal/durable"
)

// CertificateFile is the name of the authority's certificate in its folder.
// Everybody may read it.
const CertificateFile = "ca.pem"

// The other files of the folder. A pair is put in place by three renames: the
// new certificate under nextFile, the new key, and the certificate again. The
// key's is the one that counts: what a crash leaves before it is the old pair,
// what it leaves after it is the new pair, see settle.
const (
	keyFile   = "ca-key.pem"  // PKCS #8, for its owner alone
	nextFile  = "ca-next.pem" // there only while a pair is put in place
	oldPrefix = "ca-OLD-"     // followed by the serial number: replaced by Rotate
)

// A Refusal says why the files of an authority are not used, and what to do.
type Refusal struct {
	Problem string // a clause
	Fix     string // an instruction
}

// Error is the problem and what to do.
func (r *Refusal) Error() string { return r.Problem + "; " + r.Fix }

const makeNew = "egressd ca rotate makes a new one, which every sandbox has to be told to trust"

// Create makes an authority in dir, and dir itself where it does not exist,
// and returns it when it would survive a crash of the machine. It refuses a
// folder that holds one already with an error that wraps [fs.ErrExist]: of
// several processes that create one at a time, one succeeds.
func Create(dir string) (a *Authority, err error) {
	if err := makeFolder(dir); err != nil {
		return nil, fmt.Errorf("create authority: %w", err)
	}
	err = locked(dir, func() error {
		path := filepath.Join(dir, CertificateFile)
		switch _, err := os.Lstat(path); {
		case err == nil:
			return fmt.Errorf("%s: %w", path, fs.ErrExist)
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
		a, err = install(dir)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create authority: %w", err)
	}
	return a, nil
}

// Open returns the authority in dir. Where there is none the error wraps
// [fs.ErrNotExist]. A folder or a key of another user than this one or root, a
// folder that others may write, a key that others may read, a key that is not
// the certificate's, and a certificate that is malformed or not valid now are
// refused with a [*Refusal].
func Open(dir string) (a *Authority, err error) {
	err = locked(dir, func() error {
		a, err = load(dir)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open authority: %w", err)
	}
	return a, nil
}

// Rotate replaces the authority in dir, also one that Open refuses, by a new
// one with a new key. The old certificate stays in the folder until it
// expires, so that it can be found where it was trusted; the old key does not.
// An Authority that was opened before goes on with what it has. Where there is
// none to replace, the error wraps [fs.ErrNotExist].
func Rotate(dir string) (a *Authority, err error) {
	err = locked(dir, func() error {
		if err := keepOld(dir); err != nil {
			return err
		}
		a, err = install(dir)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("rotate authority: %w", err)
	}
	return a, nil
}

// makeFolder makes dir such that it is still there after a crash.
func makeFolder(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return durable.SyncFolder(filepath.Dir(dir))
}

// locked runs do while no other process, and nobody else in this one, uses the
// authority in dir. What a crash has left half done is completed first.
func locked(dir string, do func() error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close() // and with it the lock
	info, err := d.Stat()
	if err != nil {
		return err
	}
	if !ours(owner(info), os.Geteuid()) {
		return &Refusal{dir + " belongs to another user", "name a folder of your own, or give this one to the user that egressd runs as, and egressd ca rotate"}
	}
	if info.Mode().Perm()&0o022 != 0 {
		return &Refusal{dir + " can be written by others than its owner", "chmod go-w " + dir + ", and egressd ca rotate if somebody may have been there"}
	}
	if err := lock(d); err != nil {
		return fmt.Errorf("lock %s: %w", dir, err)
	}
	if err := settle(dir); err != nil {
		return err
	}
	return do()
}

// ours reports whether what belongs to owner belongs to user or to root, who
// can read and change everything anyway.
func ours(owner uint32, user int) bool { return owner == 0 || owner == uint32(user) }

func owner(info fs.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }

// lock waits until it has the folder for itself.
func lock(d *os.File) error {
	for {
		if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// settle completes what a crash interrupted: a certificate that waits for its
// place gets it if the key is its own already, else it never counted.
func settle(dir string) error {
	next, err := os.ReadFile(filepath.Join(dir, nextFile))
	if err != nil {
		return ignoreMissing(err)
	}
	cert, err := parseOne(next)
	if err != nil {
		return nil
	}
	key, err := readKey(filepath.Join(dir, keyFile))
	if err != nil || !key.PublicKey.Equal(cert.PublicKey) {
		return nil // what is wrong with the key is said by who needs it
	}
	return rename(dir, nextFile, CertificateFile)
}

// install makes a new pair and puts it in place.
func install(dir string) (*Authority, error) {
	cert, key, err := generate(time.Now())
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key: %w", err)
	}
	if err := write(dir, nextFile, 0o644, encodeCertificate(cert.Raw)); err != nil {
		return nil, err
	}
	if err := write(dir, keyFile, 0o600, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})); err != nil {
		return nil, err
	}
	if err := rename(dir, nextFile, CertificateFile); err != nil {
		return nil, err
	}
	return newAuthority(cert, key)
}

// keepOld keeps the certificate that is about to be replaced under a name of
// its own, if there is one in its file, and removes those that have expired.
func keepOld(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, CertificateFile))
	if err != nil {
		return err
	}
	if cert, err := parseOne(text); err == nil {
		name := fmt.Sprintf("%s%x.pem", oldPrefix, cert.SerialNumber)
		if err := write(dir, name, 0o644, encodeCertificate(cert.Raw)); err != nil {
			return err
		}
	}
	return removeExpired(dir, time.Now())
}

func removeExpired(dir string, now time.Time) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), oldPrefix) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if cert, err := parseOne(text); err != nil || now.Before(cert.NotAfter) {
			continue
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// write puts text into a file in one step that survives a crash. The folder is
// locked, so what has the temporary name is left from a crash.
func write(dir, name string, mode fs.FileMode, text []byte) error {
	temporary := "." + name + ".tmp"
	path := filepath.Join(dir, temporary)
	if err := ignoreMissing(os.Remove(path)); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return rename(dir, temporary, name)
}

func rename(dir, from, to string) error {
	if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
		return err
	}
	return durable.SyncFolder(dir)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
