package bundle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	blobs "oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/errcode"
)

// A bundle is the layer of this type in an image manifest (OCI image and distribution specifications, v1.1). OPA looks for bundles
// in layers of this type, too.
const (
	layerType             = ocispec.MediaTypeImageLayerGzip
	maxImageManifestBytes = 1 << 20
)

// ErrNotThere says that a registry has no bundle under a reference.
var ErrNotThere = errors.New("the registry has nothing under that name")

// A Registry is a place for one bundle in an OCI registry. It is reached over TLS alone, and ignores the proxy variables of the
// environment. The registry may name other servers for tokens and for content: the login goes to the registry, and to the server
// that the registry names for tokens.
type Registry struct {
	repository *remote.Repository
}

// parseReference parses oci://host[:port]/repository, optionally with :tag or @sha256:…. The default tag is "latest".
func parseReference(u *url.URL) (r registry.Reference, err error) {
	text := u.Host + u.Path
	if r, err = registry.ParseReference(text); err == nil && r.Reference == "" {
		text += ":latest"
		r.Reference = "latest"
	}
	// Text that the parser passes over, such as a tag in front of a digest, is refused.
	if err != nil || r.String() != text || u.RawQuery != "" || u.Scheme != "oci" {
		return r, errors.New("it is not oci://host/repository:tag or oci://host/repository@sha256:…")
	}
	return r, nil
}

// OpenRegistry returns the place that a reference names. It contacts nobody. ca holds PEM certificates of authorities, or is empty for
// those of the system.
func OpenRegistry(reference string, ca []byte, login Login) (*Registry, error) {
	u, err := url.Parse(reference)
	if err != nil {
		return nil, errors.New("it is not oci://host/repository:tag or oci://host/repository@sha256:…")
	}
	ref, err := parseReference(u)
	if err != nil {
		return nil, err
	}
	client, err := newClient(ca)
	if err != nil {
		return nil, err
	}
	return openRegistry(ref, client, login), nil
}

func openRegistry(ref registry.Reference, client *http.Client, login Login) *Registry {
	leading := *client
	leading.CheckRedirect = overTLS
	return &Registry{&remote.Repository{
		Reference:          ref,
		ManifestMediaTypes: []string{ocispec.MediaTypeImageManifest},
		Client: &auth.Client{
			Client:     &leading,
			Header:     http.Header{"User-Agent": {"egressd"}},
			Credential: login.at(ref.Host()),
			Cache:      auth.NewCache(),
			ClientID:   "egressd",
		},
	}}
}

// overTLS follows redirects to servers of content. The auth client takes the login away where a redirect leaves the registry.
func overTLS(r *http.Request, via []*http.Request) error {
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("the server redirects more than %d times", maxRedirects)
	case r.URL.Scheme != "https" || r.URL.User != nil:
		return errors.New("the server redirects to a place that is not https")
	}
	return nil
}

// pull gets the bundle of a place, unless the digest of its manifest is known. The error wraps [ErrNotThere] if there is none.
func (r *Registry) pull(ctx context.Context, known string) (*fetched, error) {
	manifest, body, err := r.repository.FetchReference(ctx, r.repository.Reference.Reference)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", ofRegistry(err))
	}
	defer body.Close()
	switch {
	case manifest.Digest.String() == known:
		return nil, errUnchanged
	case manifest.Size > maxImageManifestBytes:
		return nil, fmt.Errorf("manifest: it is larger than %d KiB", maxImageManifestBytes>>10)
	}
	text, err := blobs.ReadAll(body, manifest)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", ofRegistry(err))
	}
	layer, err := layerOf(text)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	packed, err := r.repository.Blobs().Fetch(ctx, *layer)
	if err != nil {
		return nil, fmt.Errorf("layer: %w", ofRegistry(err))
	}
	defer packed.Close()
	tarball, err := blobs.ReadAll(packed, *layer)
	if err != nil {
		return nil, fmt.Errorf("layer: it does not have the size and the digest that the manifest says: %w", ofRegistry(err))
	}
	return &fetched{tarball, manifest.Digest.String()}, nil
}

func layerOf(text []byte) (found *ocispec.Descriptor, err error) {
	var m ocispec.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, errors.New("it is not one")
	}
	if m.MediaType != "" && m.MediaType != ocispec.MediaTypeImageManifest {
		return nil, fmt.Errorf("its media type is %.80q, not %s", m.MediaType, ocispec.MediaTypeImageManifest)
	}
	for i, l := range m.Layers {
		switch {
		case l.MediaType != layerType:
		case found != nil:
			return nil, fmt.Errorf("it has several layers of type %s", layerType)
		default:
			found = &m.Layers[i]
		}
	}
	if found == nil {
		return nil, fmt.Errorf("it has no layer of type %s", layerType)
	}
	if found.Digest.Validate() != nil || found.Size > maxBundleBytes || found.Size < 0 {
		return nil, errors.New("its layer has no digest sha256:…, or is too large")
	}
	return found, nil
}

// Pushed says what a push did.
type Pushed struct {
	Digest   string  // of the manifest, by which the bundle can be fetched, too
	Bundle   *Bundle // what was pushed
	Replaced *Bundle // what the tag named before, if that was signed with the same key; else nil
}

// Push puts a bundle into the registry under the tag of the place. Before that it reads the bundle as a feed with the same key would.
// The error wraps [ErrOlder] if the tag names a bundle of this key that was issued later, which no machine would exchange for an
// older one. The same bundle has the same digest. Layers that the registry has are not sent again.
func (r *Registry) Push(ctx context.Context, tarball []byte, key *Key) (*Pushed, error) {
	p, err := r.push(ctx, tarball, key)
	return p, shorten(err)
}

func (r *Registry) push(ctx context.Context, tarball []byte, key *Key) (*Pushed, error) {
	if _, err := r.repository.Reference.Digest(); err == nil {
		return nil, errors.New("a bundle is pushed under a tag, not a digest")
	}
	b, err := Read(tarball, key, time.Now())
	if err != nil {
		return nil, err
	}
	p := &Pushed{Bundle: b}
	switch there, err := r.pull(ctx, ""); {
	case errors.Is(err, ErrNotThere):
	case err != nil:
		return nil, fmt.Errorf("what is there now: %w", err)
	default:
		if p.Replaced, err = Read(there.body, key, time.Time{}); err == nil && b.Issued.Before(p.Replaced.Issued) {
			return nil, olderError(b, &State{Issued: p.Replaced.Issued})
		}
	}
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Annotations: map[string]string{ocispec.AnnotationRevision: b.Revision}}
	m.SchemaVersion = 2
	if m.Config, err = r.blob(ctx, ocispec.MediaTypeImageConfig, []byte("{}")); err != nil {
		return nil, err
	}
	layer, err := r.blob(ctx, layerType, tarball)
	if err != nil {
		return nil, err
	}
	m.Layers = []ocispec.Descriptor{layer}
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	d := blobs.NewDescriptorFromBytes(m.MediaType, text)
	if err := r.repository.PushReference(ctx, d, bytes.NewReader(text), r.repository.Reference.Reference); err != nil {
		return nil, ofRegistry(err)
	}
	p.Digest = d.Digest.String()
	return p, nil
}

// blob stores a blob that the registry does not have yet.
func (r *Registry) blob(ctx context.Context, mediaType string, text []byte) (ocispec.Descriptor, error) {
	d := blobs.NewDescriptorFromBytes(mediaType, text)
	if there, err := r.repository.Blobs().Exists(ctx, d); err == nil && there {
		return d, nil
	}
	if err := r.repository.Blobs().Push(ctx, d, bytes.NewReader(text)); err != nil {
		return d, ofRegistry(err)
	}
	return d, nil
}

// ofRegistry removes URLs from an error, since those of servers of content are signed.
func ofRegistry(err error) error {
	var answer *errcode.ErrorResponse
	switch {
	case errors.As(err, &answer):
		codes := make([]string, 0, len(answer.Errors))
		for _, one := range answer.Errors {
			codes = append(codes, one.Code)
		}
		return fmt.Errorf("the registry answered with status %d %.200s", answer.StatusCode, strings.Join(codes, " "))
	case errors.Is(err, errdef.ErrNotFound):
		return ErrNotThere
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return errors.New("the registry wants a login, and there is none for it")
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, blobs.ErrMismatchedDigest), errors.Is(err, blobs.ErrTrailingData):
		return errors.New("it is not what the registry said before it")
	}
	if err = withoutURL(err); strings.Contains(err.Error(), "://") {
		return errors.New(urlForm().ReplaceAllString(err.Error(), "(URL)"))
	}
	return err
}

var urlForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[a-z]+://[^\s"]*`) })

// A Login is how to log in at a registry. The zero Login does not.
type Login struct {
	credential auth.CredentialFunc
}

// at returns the login for one host alone.
func (l Login) at(host string) auth.CredentialFunc {
	return func(ctx context.Context, asked string) (auth.Credential, error) {
		if l.credential == nil || asked != host {
			return auth.EmptyCredential, nil
		}
		return l.credential(ctx, asked)
	}
}

// loginFromFile returns the login in the text of a token file, in one of three forms: a Bearer token, NAME:PASSWORD, or what
// docker writes into its config.json, with logins as such and no programs that have them. An empty text is no login.
func loginFromFile(text string) (Login, error) {
	name, password, named := strings.Cut(text, ":")
	switch {
	case strings.HasPrefix(text, "{"):
		store, err := credentials.NewMemoryStoreFromDockerConfig([]byte(text))
		if err != nil {
			return Login{}, errors.New("it is no config.json of docker's")
		}
		return Login{func(ctx context.Context, host string) (auth.Credential, error) {
			if host == "registry-1.docker.io" {
				host = "index.docker.io" // as docker writes it
			}
			return store.Get(ctx, host)
		}}, nil
	case named:
		return static(auth.Credential{Username: name, Password: password}), nil
	case text != "":
		return static(auth.Credential{AccessToken: text}), nil
	}
	return Login{}, nil
}

func static(c auth.Credential) Login {
	return Login{func(context.Context, string) (auth.Credential, error) { return c, nil }}
}

// LoginFromDocker returns the logins of docker's own configuration, also by the programs that it names.
func LoginFromDocker() (Login, error) {
	store, err := credentials.NewStoreFromDocker(credentials.StoreOptions{DetectDefaultNativeStore: true})
	if err != nil {
		return Login{}, err
	}
	return Login{credentials.Credential(store)}, nil
}
