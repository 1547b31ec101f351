/* Types that all of HiSilicon's media libraries share. Read by C and by cffi. */
#ifndef PYASC_HI_BASE_H
#define PYASC_HI_BASE_H

typedef unsigned char HI_U8;
typedef unsigned short HI_U16;
typedef unsigned int HI_U32;
typedef int HI_S32;
typedef unsigned long long HI_U64;
typedef char HI_CHAR;
typedef void HI_VOID;

typedef enum { HI_FALSE = 0, HI_TRUE = 1 } HI_BOOL;

#define HI_SUCCESS 0
#define HI_FAILURE -1

#endif
