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

// CertificateFile is the name of the CA's certificate in its folder. All users may read it.
const CertificateFile = "ca.pem"

// Other files of the folder. A new pair is installed by three renames: the certificate as nextFile, the
// key, and the certificate as CertificateFile. The rename of the key commits. After a crash before it the
// old pair remains; after it, settle completes the new pair.
const (
	keyFile   = "ca-key.pem"  // PKCS #8, readable by its owner only
	nextFile  = "ca-next.pem" // exists only while a pair is installed
	oldPrefix = "ca-OLD-"     // followed by the serial number of a replaced certificate
)

// A Refusal explains why the files of an authority are unusable.
type Refusal struct {
	Problem string // a clause
	Fix     string // an instruction
}

// Error returns the problem and the fix.
func (r *Refusal) Error() string { return r.Problem + "; " + r.Fix }

const makeNew = "egressd ca rotate makes a new one, which every sandbox has to be told to trust"

// Create creates an authority in dir and returns it once it is durable. It creates dir if necessary. If
// dir holds an authority already, the error wraps [fs.ErrExist]. Of several concurrent calls one succeeds.
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

// Open returns the authority in dir. If there is none, the error wraps [fs.ErrNotExist]. Open returns a
// [*Refusal] for:
//   - a folder or key that belongs to another user than this one or root,
//   - a folder that others may write, or a key that others may read,
//   - a key that does not match the certificate,
//   - a certificate that is malformed or not valid now.
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

// Rotate replaces the authority in dir, even one that Open refuses, by a new one with a new key. The old
// certificate stays in the folder until it expires, so that it can be found where it was trusted. The old
// key is removed. An open Authority keeps its old pair. If dir holds no authority, the error wraps
// [fs.ErrNotExist].
func Rotate(dir string) (a *Authority, err error) {
	err = locked(dir, func() error {
		if err := keepOld(dir); err != nil {
			return err
		}
		a, err = install(dir)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("replace the certificate authority: %w", err)
	}
	return a, nil
}

func makeFolder(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return durable.SyncFolder(filepath.Dir(dir))
}

// locked calls do while it holds an exclusive lock on dir, against other processes and goroutines. It
// first completes an installation that a crash interrupted.
func locked(dir string, do func() error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close() // releases the lock
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

// ours reports whether owner is user or root, who can change everything anyway.
func ours(owner uint32, user int) bool { return owner == 0 || owner == uint32(user) }

func owner(info fs.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }

// lock waits for an exclusive lock.
func lock(d *os.File) error {
	for {
		if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// settle completes an interrupted installation: if the key belongs to the certificate in nextFile, that
// certificate replaces the current one.
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
		return nil // callers that need the key report its errors
	}
	return rename(dir, nextFile, CertificateFile)
}

// install creates a new pair and installs it.
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

// keepOld saves the current certificate under a name of its own and removes expired ones.
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

// write replaces a file atomically and durably. The folder is locked, so an existing temporary file is
// left from a crash.
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
