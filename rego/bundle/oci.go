package bundle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
)

// Media types and limits for registries (OCI image and distribution specifications, v1.1). OPA looks for
// bundles in layers of this type.
const (
	manifestType          = "application/vnd.oci.image.manifest.v1+json"
	layerType             = "application/vnd.oci.image.layer.v1.tar+gzip"
	maxImageManifestBytes = 1 << 20
	maxGrantBytes         = 64 << 10
)

// A reference names a bundle in a registry.
type reference struct {
	registry   url.URL // scheme https and host
	repository string
	version    string // tag or digest "sha256:…"
}

var (
	repositoryForm = pattern(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagForm        = pattern(`^[a-zA-Z0-9_][a-zA-Z0-9._-]*$`)
	digestForm     = pattern(`^sha256:[a-f0-9]{64}$`)
)

// pattern compiles a regular expression on first use, so that it does not delay the start of every
// command.
func pattern(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// parseReference parses oci://host[:port]/repository, optionally with :tag or @sha256:…. The default tag
// is "latest".
func parseReference(u *url.URL) (*reference, error) {
	path := strings.TrimPrefix(u.Path, "/")
	r := &reference{registry: url.URL{Scheme: "https", Host: u.Host}, version: "latest"}
	form := tagForm
	if name, digest, found := strings.Cut(path, "@"); found {
		r.repository, r.version, form = name, digest, digestForm
	} else if name, tag, found := strings.Cut(path, ":"); found {
		r.repository, r.version = name, tag
	} else {
		r.repository = path
	}
	if !repositoryForm().MatchString(r.repository) || !form().MatchString(r.version) || len(r.version) > 128 || u.RawQuery != "" {
		return nil, errors.New("it is not oci://host/repository:tag or oci://host/repository@sha256:…")
	}
	return r, nil
}

func (r *reference) at(kind, name string) *url.URL {
	return r.registry.JoinPath("v2", r.repository, kind, name)
}

// An imageManifest lists the layers of a bundle.
type imageManifest struct {
	MediaType string       `json:"mediaType"`
	Layers    []descriptor `json:"layers"`
}

type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
}

// A registry fetches one bundle. Its grant is discarded afterwards.
type registry struct {
	*reference
	client *http.Client
	token  string // the operator's token
	grant  string // the registry's token for this repository
}

// pull gets the bundle of a reference, unless the digest of its manifest is known.
func pull(ctx context.Context, client *http.Client, u *url.URL, known, token string) (*fetched, error) {
	ref, err := parseReference(u)
	if err != nil {
		return nil, err
	}
	r := &registry{reference: ref, client: client, token: token, grant: token}
	text, err := r.get(ctx, r.at("manifests", r.version), manifestType, maxImageManifestBytes)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	digest := digestOf(text)
	switch {
	case digestForm().MatchString(r.version) && digest != r.version:
		return nil, errors.New("manifest: it does not have the digest that was asked for")
	case digest == known:
		return nil, errUnchanged
	}
	layer, err := layerOf(text)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	body, err := r.get(ctx, r.at("blobs", layer.Digest), "*/*", maxBundleBytes)
	if err != nil {
		return nil, fmt.Errorf("layer: %w", err)
	}
	if int64(len(body)) != layer.Size || digestOf(body) != layer.Digest {
		return nil, errors.New("layer: it does not have the size and the digest that the manifest says")
	}
	return &fetched{body, digest}, nil
}

func digestOf(text []byte) string {
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func layerOf(text []byte) (found *descriptor, err error) {
	var m imageManifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, errors.New("it is not one")
	}
	if m.MediaType != "" && m.MediaType != manifestType {
		return nil, fmt.Errorf("its media type is %.80q, not %s", m.MediaType, manifestType)
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
	if !digestForm().MatchString(found.Digest) || found.Size > maxBundleBytes {
		return nil, errors.New("its layer has no digest sha256:…, or is too large")
	}
	return found, nil
}

// get gets u. If the registry requires its own token, get obtains one and tries again.
func (r *registry) get(ctx context.Context, u *url.URL, accept string, limit int64) ([]byte, error) {
	reply, err := r.ask(ctx, u, accept)
	if err != nil {
		return nil, err
	}
	if reply.StatusCode == http.StatusUnauthorized {
		reply.Body.Close()
		if err := r.obtain(ctx, reply.Header.Get("WWW-Authenticate")); err != nil {
			return nil, err
		}
		if reply, err = r.ask(ctx, u, accept); err != nil {
			return nil, err
		}
	}
	defer reply.Body.Close()
	return content(reply, limit)
}

func (r *registry) ask(ctx context.Context, u *url.URL, accept string) (*http.Response, error) {
	header := http.Header{"Accept": {accept}}
	bear(header, r.grant)
	return get(ctx, r.client, u, header)
}

var challengeParameter = pattern(`([a-z_]+)="([^"\\]*)"`)

// obtain answers a challenge with the token authentication of the distribution project: it asks the realm
// for a token to pull this repository. The request carries the operator's token, so the realm must be on
// the same server.
func (r *registry) obtain(ctx context.Context, challenge string) error {
	scheme, parameters, _ := strings.Cut(challenge, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return errors.New("the registry wants to know who asks, and not by a Bearer token")
	}
	said := map[string]string{}
	for _, p := range challengeParameter().FindAllStringSubmatch(parameters, -1) {
		said[p[1]] = p[2]
	}
	realm, err := url.Parse(said["realm"])
	if err != nil || realm.Scheme != "https" || realm.Host != r.registry.Host || realm.User != nil {
		return errors.New("the registry sends for a token to another server, or not over https; it is not asked")
	}
	realm.RawQuery = url.Values{"service": {said["service"]}, "scope": {"repository:" + r.repository + ":pull"}}.Encode()
	r.grant = r.token
	reply, err := r.ask(ctx, realm, "application/json")
	if err != nil {
		return fmt.Errorf("token: %w", err)
	}
	defer reply.Body.Close()
	text, err := content(reply, maxGrantBytes)
	if err != nil {
		return fmt.Errorf("token: %w", err)
	}
	return r.granted(text)
}

func (r *registry) granted(text []byte) error {
	var grant struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if err := json.Unmarshal(text, &grant); err != nil {
		return errors.New("token: the registry's answer holds none")
	}
	if r.grant = grant.Token; r.grant == "" {
		r.grant = grant.AccessToken
	}
	if r.grant == "" {
		return errors.New("token: the registry's answer holds none")
	}
	return nil
}
