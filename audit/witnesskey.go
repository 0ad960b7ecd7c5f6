package audit

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/internal/durable"
)

const (
	identityHeader    = "egressd witness key v1"
	identityExtension = ".witness"
)

// An Identity is the key by which witnesses know a log, since the log's own keys change. It signs the checkpoints that are sent to
// witnesses, and no verifier reads its signature. A thief of the key can make a witness cosign a tree that the log does
// not have, which verifiers notice. The thief cannot make a witness contradict an earlier cosignature.
type Identity struct{ *signer }

// Public returns the public key, as a witness has to be given it.
func (i *Identity) Public() string { return i.public() }

// Sign returns a checkpoint with one more signature.
func (i *Identity) Sign(checkpoint []byte) ([]byte, error) {
	text, _, err := format.SplitNote(checkpoint)
	if err != nil {
		return nil, err
	}
	signed, err := note.Sign(&note.Note{Text: text}, i.signer)
	if err != nil {
		return nil, err
	}
	return append(append([]byte{}, checkpoint...), signed[len(text)+1:]...), nil
}

// OpenIdentity returns the key by which witnesses know the log in dir with this origin,
// from the folder of its keys, and makes it where it is not there yet: then made is
// true. It may be called by several processes at once.
func OpenIdentity(dir, folder, origin string) (i *Identity, made bool, err error) {
	folder = keyFolder(dir, folder)
	path := keyPath(folder, origin, identityExtension)
	if i, err = readIdentity(path, origin); !errors.Is(err, fs.ErrNotExist) {
		return i, false, err
	}
	if !format.IsOrigin(origin) {
		return nil, false, errors.New("it is not the origin of a log")
	}
	if err := makeKeyFolder(folder); err != nil {
		return nil, false, err
	}
	s := newSigner(origin)
	err = writeOnce(folder, path, identityText(s))
	if errors.Is(err, fs.ErrExist) {
		i, err = readIdentity(path, origin)
		return i, false, err
	}
	if err != nil {
		return nil, false, fmt.Errorf("write the log's key for witnesses: %w", err)
	}
	return &Identity{s}, true, nil
}

// IdentityOf returns the public half of the key by which witnesses know the log in
// dir. An error wraps [fs.ErrNotExist] where there is no log, or no such key.
func IdentityOf(dir, folder string) (string, error) {
	origin, err := format.OriginOf(dir)
	if err != nil {
		return "", err
	}
	i, err := readIdentity(keyPath(keyFolder(dir, folder), origin, identityExtension), origin)
	if err != nil {
		return "", err
	}
	defer i.wipe()
	return i.Public(), nil
}

func identityText(s *signer) []byte {
	b := fmt.Appendf(nil, "%s\norigin %s\nprivate ", identityHeader, s.name)
	return append(base64.StdEncoding.AppendEncode(b, s.key.Seed()), '\n')
}

// writeOnce makes a file that others see whole or not at all, and durable. The error
// wraps [fs.ErrExist] where it is there already.
func writeOnce(folder, path string, text []byte) error {
	defer clear(text)
	f, err := os.CreateTemp(folder, durable.Left+"*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Link(f.Name(), path)
	}
	if err = errors.Join(err, os.Remove(f.Name())); err == nil {
		err = durable.SyncFolder(folder)
	}
	return err
}

func readIdentity(path, origin string) (*Identity, error) {
	text, err := readSecret(path)
	if err != nil {
		return nil, err
	}
	defer clear(text)
	encoded, ok := strings.CutPrefix(string(text), identityHeader+"\norigin "+origin+"\nprivate ")
	encoded, ends := strings.CutSuffix(encoded, "\n")
	seed, err := format.Decode64(encoded)
	defer clear(seed)
	if !ok || !ends || err != nil || len(seed) != ed25519.SeedSize || !format.IsOrigin(origin) {
		return nil, &Refusal{path + ": it is not the key of this log for witnesses", "restore the file from a copy, or remove it and give the witness the new key"}
	}
	return &Identity{&signer{origin, ed25519.NewKeyFromSeed(seed)}}, nil
}
