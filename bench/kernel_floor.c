// The kernel's share of an attachment: only the netlink messages that set up one sandbox.
//
// It is called like a plugin. CNI_COMMAND is ADD or DEL, CNI_NETNS a fresh sandbox, CNI_CONTAINERID starts with eight hex digits
// that number the attachment, FLOOR_FAMILIES is 4 or 46. Prints microseconds:
//   ADD  of all its kernel work
//   DEL  until the kernel's notification of the deleted link, and until the request returns
// The messages are those of svc/dataplane/plan.py; the addresses follow from the number.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <linux/ip.h>
#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>

enum { INTERFACE_UP = 1, FIRST_INDEX = 1 << 20, PEER_INDEX = 2, CREATE = NLM_F_CREATE | NLM_F_EXCL };

static const unsigned char HOST_MAC[6] = {0xee, 0xee, 0xee, 0xee, 0xee, 0xee};
static char host_name[16];
static unsigned number, host_index;
static int dual;
static unsigned char address4[4], gateway4[4], address6[16], gateway6[16];

static _Noreturn void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static double microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

// ---- a batch: messages one after another, each acknowledged

static struct { char data[4096]; size_t size; unsigned messages; } batch;
static struct nlmsghdr *message;

static void start(int type, int flags, const void *body, size_t size) {
    message = (struct nlmsghdr *)(batch.data + batch.size);
    *message = (struct nlmsghdr){
        .nlmsg_len = (unsigned)NLMSG_LENGTH(size), .nlmsg_type = (unsigned short)type,
        .nlmsg_flags = (unsigned short)(NLM_F_REQUEST | NLM_F_ACK | flags), .nlmsg_seq = ++batch.messages};
    memcpy(NLMSG_DATA(message), body, size);
}

static void finish(void) { batch.size += NLMSG_ALIGN(message->nlmsg_len); }

static void raw(const void *data, size_t size) {
    memcpy((char *)message + NLMSG_ALIGN(message->nlmsg_len), data, size);
    message->nlmsg_len = (unsigned)(NLMSG_ALIGN(message->nlmsg_len) + size);
}

static struct rtattr *attribute(int type, const void *data, size_t size) {
    struct rtattr *made = (struct rtattr *)((char *)message + NLMSG_ALIGN(message->nlmsg_len));
    *made = (struct rtattr){.rta_len = (unsigned short)RTA_LENGTH(size), .rta_type = (unsigned short)type};
    if (size)
        memcpy(RTA_DATA(made), data, size);
    message->nlmsg_len = (unsigned)(NLMSG_ALIGN(message->nlmsg_len) + RTA_ALIGN(made->rta_len));
    return made;
}

static void number_attribute(int type, unsigned value) { attribute(type, &value, sizeof value); }

static struct rtattr *open_nest(int type) { return attribute(type, NULL, 0); }

static void close_nest(struct rtattr *nest) {
    nest->rta_len = (unsigned short)((char *)message + NLMSG_ALIGN(message->nlmsg_len) - (char *)nest);
}

static int open_socket(unsigned groups) {
    struct sockaddr_nl name = {.nl_family = AF_NETLINK, .nl_groups = groups};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE), on = 1;
    setsockopt(fd, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof on);
    if (fd < 0 || bind(fd, (struct sockaddr *)&name, sizeof name) < 0)
        die("netlink socket");
    return fd;
}

static void execute(int fd) {
    char reply[8192];
    if (send(fd, batch.data, batch.size, 0) < 0)
        die("send");
    for (unsigned left = batch.messages; left > 0;) {
        int size = (int)recv(fd, reply, sizeof reply, 0);
        if (size < 0)
            die("recv");
        for (struct nlmsghdr *ack = (void *)reply; NLMSG_OK(ack, (unsigned)size); ack = NLMSG_NEXT(ack, size), left--)
            if (ack->nlmsg_type == NLMSG_ERROR && (errno = -((struct nlmsgerr *)NLMSG_DATA(ack))->error) != 0)
                fprintf(stderr, "message %u: ", ack->nlmsg_seq), die("refused");
    }
    batch.size = batch.messages = 0;
}

// ---- the messages

static void create_pair(int sandbox) {
    struct ifinfomsg host = {.ifi_index = (int)host_index}, peer = {.ifi_index = PEER_INDEX};
    start(RTM_NEWLINK, CREATE, &host, sizeof host);
    attribute(IFLA_IFNAME, host_name, strlen(host_name) + 1);
    attribute(IFLA_ADDRESS, HOST_MAC, sizeof HOST_MAC);
    number_attribute(IFLA_NUM_TX_QUEUES, 1);
    number_attribute(IFLA_NUM_RX_QUEUES, 1);
    struct rtattr *info = open_nest(IFLA_LINKINFO);
    attribute(IFLA_INFO_KIND, "veth", 4);
    struct rtattr *data = open_nest(IFLA_INFO_DATA), *other = open_nest(VETH_INFO_PEER);
    raw(&peer, sizeof peer);
    attribute(IFLA_IFNAME, "eth0", 5);
    number_attribute(IFLA_NUM_TX_QUEUES, 1);
    number_attribute(IFLA_NUM_RX_QUEUES, 1);
    number_attribute(IFLA_NET_NS_FD, (unsigned)sandbox);
    close_nest(other), close_nest(data), close_nest(info);
    finish();
}

static void bring_up(unsigned index, int with_settings) {
    struct ifinfomsg link = {.ifi_index = (int)index, .ifi_flags = INTERFACE_UP, .ifi_change = INTERFACE_UP};
    start(RTM_SETLINK, 0, &link, sizeof link);
    if (with_settings) {
        struct rtattr *spec = open_nest(IFLA_AF_SPEC), *inet = open_nest(AF_INET), *conf = open_nest(IFLA_INET_CONF);
        number_attribute(IPV4_DEVCONF_FORWARDING, 1);
        number_attribute(IPV4_DEVCONF_PROXY_ARP, 1);
        number_attribute(IPV4_DEVCONF_ROUTE_LOCALNET, 1);
        close_nest(conf), close_nest(inet);
        if (dual) {
            struct rtattr *inet6 = open_nest(AF_INET6);
            attribute(IFLA_INET6_ADDR_GEN_MODE, (unsigned char[]){IN6_ADDR_GEN_MODE_NONE}, 1);
            close_nest(inet6);
        }
        close_nest(spec);
    }
    finish();
}

static void set_proxy_delay(void) {
    struct ndtmsg table = {.ndtm_family = AF_INET};
    unsigned long long delay = 0;
    start(RTM_SETNEIGHTBL, 0, &table, sizeof table);
    attribute(NDTA_NAME, "arp_cache", 10);
    struct rtattr *parameters = open_nest(NDTA_PARMS);
    number_attribute(NDTPA_IFINDEX, host_index);
    attribute(NDTPA_PROXY_DELAY, &delay, sizeof delay);
    close_nest(parameters);
    finish();
}

static void add_address(unsigned index, int family, const void *address, int length, int scope) {
    struct ifaddrmsg body = {.ifa_family = (unsigned char)family, .ifa_prefixlen = (unsigned char)length,
                             .ifa_scope = (unsigned char)scope, .ifa_index = index,
                             .ifa_flags = family == AF_INET6 ? IFA_F_NODAD : 0};
    start(RTM_NEWADDR, CREATE, &body, sizeof body);
    attribute(IFA_LOCAL, address, family == AF_INET6 ? 16 : 4);
    attribute(IFA_ADDRESS, address, family == AF_INET6 ? 16 : 4);
    finish();
}

static void add_route(unsigned index, int family, const void *destination, int length, const void *gateway, int scope) {
    struct rtmsg body = {.rtm_family = (unsigned char)family, .rtm_dst_len = (unsigned char)length, .rtm_table = RT_TABLE_MAIN,
                         .rtm_protocol = RTPROT_BOOT, .rtm_scope = (unsigned char)scope, .rtm_type = RTN_UNICAST};
    size_t size = family == AF_INET6 ? 16 : 4;
    start(RTM_NEWROUTE, CREATE, &body, sizeof body);
    if (length)
        attribute(RTA_DST, destination, size);
    if (gateway)
        attribute(RTA_GATEWAY, gateway, size);
    number_attribute(RTA_OIF, index);
    finish();
}

static void host_messages(int sandbox) {
    create_pair(sandbox);
    bring_up(host_index, 1);
    set_proxy_delay();
    if (dual)
        add_address(host_index, AF_INET6, gateway6, 64, RT_SCOPE_LINK);
    add_route(host_index, AF_INET, address4, 32, NULL, RT_SCOPE_LINK);
    if (dual)
        add_route(host_index, AF_INET6, address6, 128, NULL, RT_SCOPE_UNIVERSE);
}

static void sandbox_messages(void) {
    bring_up(PEER_INDEX, 0);
    add_address(PEER_INDEX, AF_INET, address4, 32, RT_SCOPE_UNIVERSE);
    if (dual)
        add_address(PEER_INDEX, AF_INET6, address6, 128, RT_SCOPE_UNIVERSE);
    add_route(PEER_INDEX, AF_INET, gateway4, 32, NULL, RT_SCOPE_LINK);
    add_route(PEER_INDEX, AF_INET, NULL, 0, gateway4, RT_SCOPE_UNIVERSE);
    if (dual)
        add_route(PEER_INDEX, AF_INET6, NULL, 0, gateway6, RT_SCOPE_UNIVERSE);
}

static void write_sysctl(const char *format, const char *name, const char *value) {
    char path[128];
    snprintf(path, sizeof path, format, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, value, strlen(value)) < 0)
        die(path);
    close(fd);
}

static void host_sysctls(void) {
    write_sysctl("/proc/sys/net/ipv6/conf/%s/accept_ra", host_name, "0");
    if (dual) {
        write_sysctl("/proc/sys/net/ipv6/conf/%s/disable_ipv6", host_name, "0");
        write_sysctl("/proc/sys/net/ipv6/conf/%s/accept_dad", host_name, "0");
        write_sysctl("/proc/sys/net/ipv6/conf/%s/proxy_ndp", host_name, "1");
        write_sysctl("/proc/sys/net/ipv6/conf/%s/forwarding", host_name, "1");
    }
}

static void sandbox_sysctls(void) {
    write_sysctl("/proc/sys/net/ipv4/%s", "ip_forward", "0");
    if (dual) {
        write_sysctl("/proc/sys/net/ipv6/conf/%s/disable_ipv6", "all", "0");
        write_sysctl("/proc/sys/net/ipv6/conf/%s/disable_ipv6", "default", "0");
        write_sysctl("/proc/sys/net/ipv6/conf/%s/disable_ipv6", "lo", "0");
        write_sysctl("/proc/sys/net/ipv6/conf/%s/accept_dad", "eth0", "0");
        write_sysctl("/proc/sys/net/ipv6/conf/%s/forwarding", "all", "0");
    }
}

// ---- the verbs

static void add(const char *netns) {
    double started = microseconds();
    int sandbox = open(netns, O_RDONLY | O_CLOEXEC), host = open_socket(0);
    if (sandbox < 0)
        die(netns);
    host_messages(sandbox);
    execute(host);
    host_sysctls();
    if (setns(sandbox, CLONE_NEWNET) < 0)
        die("setns");
    int inside = open_socket(0);
    sandbox_sysctls();
    sandbox_messages();
    execute(inside);
    printf("%.1f\n", microseconds() - started);
}

static void *delete_link(void *host) {
    struct ifinfomsg link = {.ifi_index = (int)host_index};
    start(RTM_DELLINK, 0, &link, sizeof link);
    finish();
    execute(*(int *)host);
    return NULL;
}

static int tells_of_our_link(const struct nlmsghdr *note) {
    const struct ifinfomsg *link = NLMSG_DATA(note);
    return note->nlmsg_type == RTM_DELLINK && link->ifi_family == AF_UNSPEC && link->ifi_index == (int)host_index;
}

static void wait_until_gone(int monitor) {
    char data[8192];
    for (;;) {
        int size = (int)recv(monitor, data, sizeof data, 0);
        if (size < 0)
            die("recv");
        for (struct nlmsghdr *note = (void *)data; NLMSG_OK(note, (unsigned)size); note = NLMSG_NEXT(note, size))
            if (tells_of_our_link(note))
                return;
    }
}

static void delete(void) {
    pthread_t deleter;
    int host = open_socket(0), monitor = open_socket(RTMGRP_LINK);
    double started = microseconds();
    pthread_create(&deleter, NULL, delete_link, &host);
    wait_until_gone(monitor);
    double gone = microseconds();
    pthread_join(deleter, NULL);
    printf("%.1f %.1f\n", gone - started, microseconds() - started);
}

int main(void) {
    const char *verb = getenv("CNI_COMMAND"), *netns = getenv("CNI_NETNS"), *id = getenv("CNI_CONTAINERID");
    const char *families = getenv("FLOOR_FAMILIES");
    if (!verb || !netns || !id || sscanf(id, "%8x", &number) != 1)
        die("CNI_COMMAND, CNI_NETNS or CNI_CONTAINERID is missing");
    dual = families && strcmp(families, "46") == 0;
    host_index = FIRST_INDEX + number;
    snprintf(host_name, sizeof host_name, "floor%x", number);
    unsigned in_order = htonl(number & 0xffff);
    inet_pton(AF_INET, "10.66.0.0", address4), memcpy(address4 + 2, (char *)&in_order + 2, 2);
    inet_pton(AF_INET6, "fd66::", address6), memcpy(address6 + 12, &in_order, 4);
    inet_pton(AF_INET, "169.254.1.1", gateway4);
    inet_pton(AF_INET6, "fe80::ecee:eeff:feee:eeee", gateway6);
    if (strcmp(verb, "ADD") == 0)
        add(netns);
    else
        delete();
    return 0;
}
