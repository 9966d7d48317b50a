#!/bin/sh
# Builds the programs of a Kubernetes node, 1.20.2, from Debian bookworm's source package with its own Go 1.19, because no
# binary of an API server comes in a package. About 6 minutes and 5 GB on two cores, once; what is there already is kept.
# usage: kube-build.sh DIR     the programs: DIR/bin/kube-apiserver kube-controller-manager kube-scheduler kubelet
# Exit status 2: this machine cannot build them (the reason is the last line); 1: the build failed.
set -eu
[ $# -eq 1 ] || { echo "usage: kube-build.sh DIR"; exit 2; }
version=1.20.5+really1.20.2-1.1+deb12u1
programs="kube-apiserver kube-controller-manager kube-scheduler kubelet"
dir=$1

complete() { for program in $programs; do [ -x "$dir/bin/$program" ] || return 1; done; }
cannot() { echo "$1"; exit 2; }

complete && exit 0
[ "$(id -u)" = 0 ] || cannot "needs root: it installs the Go compiler"
grep -qs VERSION_CODENAME=bookworm /etc/os-release || cannot "needs Debian bookworm: its source package and its Go compiler"
mkdir -p "$dir"
dir=$(realpath "$dir")
exec 9>"$dir/.lock"
flock 9  # one build at a time; the second one finds it done
complete && exit 0

echo "building $programs: about 6 minutes"
sources=/etc/apt/sources.list.d/svc-tests-kube.list
for suite in "debian bookworm" "debian-security bookworm-security"; do
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/$suite main"
done > "$sources"
trap 'rm -f "$sources"' EXIT
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends golang-1.19-go ca-certificates dpkg-dev make rsync golang-github-modern-go-reflect2-dev >/dev/null
cd "$dir"
rm -rf k8s
apt-get source -qq --download-only "kubernetes=$version"
dpkg-source -x "kubernetes_$version.dsc" k8s >/dev/null

# The reflect2 1.0.1 in there corrupts maps under Go >= 1.18: the API server dies of the first object with a map in it.
reflect2=k8s/vendor/github.com/modern-go/reflect2
rm -f "$reflect2"/*.go "$reflect2"/*.s
cp /usr/share/gocode/src/github.com/modern-go/reflect2/*.go /usr/share/gocode/src/github.com/modern-go/reflect2/*.s "$reflect2"

mkdir -p home k8s/.go/src/k8s.io
ln -sfn ../../.. k8s/.go/src/k8s.io/kubernetes
what=
for program in $programs; do what="$what cmd/$program"; done
env PATH="/usr/lib/go-1.19/bin:$PATH" HOME="$dir/home" GOPATH="$dir/k8s/.go" GO111MODULE=off CGO_ENABLED=0 \
    make -C k8s WHAT="$what" >build.log 2>&1 || { tail -n 20 build.log; exit 1; }
mkdir -p bin
for program in $programs; do cp -L "k8s/_output/bin/$program" "bin/.$program"; mv "bin/.$program" "bin/$program"; done
rm -rf k8s home
